"""Make the generated code from the files in proto/; run by ``dev.py proto``.

The compiler is pinned, so that its output loads on every protobuf from 6.31 on. It is installed
into a directory of its own, for only this: it would drag newer packages into the development set.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto/pulse/v1/pulse.proto"
PROTOS = [PROTO, ROOT / "proto/externalscaler/externalscaler.proto"]
GENERATED = ROOT / "src/pulsed/rpc/generated"
STAMP = GENERATED / "source.sha256"
COMPILER = "grpcio-tools==1.76.0"


def digest() -> str:
    """What the generated code was, or would be, made from."""
    return hashlib.sha256(b"".join(proto.read_bytes() for proto in PROTOS)).hexdigest()


def main() -> int:
    """Compile; the stamp comes last."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.EnvBuilder(with_pip=True).create(place / "venv")
        python = (
            place / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        )
        subprocess.run([str(python), "-m", "pip", "install", "-q", COMPILER], check=True)
        out = place / "out"
        out.mkdir()
        options = [f"-I{ROOT / 'proto'}", f"--python_out={out}", f"--pyi_out={out}"]
        files = [str(proto) for proto in PROTOS]
        subprocess.run([str(python), "-m", "grpc_tools.protoc", *options, *files], check=True)
        for made in out.rglob("*_pb2.py*"):
            shutil.copy(made, GENERATED)
    STAMP.write_text(digest() + "\n", encoding="ascii")
    names = ", ".join(str(proto.relative_to(ROOT)) for proto in PROTOS)
    print(f"made {GENERATED.relative_to(ROOT)} from {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
