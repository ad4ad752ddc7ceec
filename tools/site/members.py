"""What a public class or function offers, read from its source: signatures, docstrings, twins."""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pulsed

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Member:
    """A method, a property or an attribute of a class."""

    name: str
    signature: str
    """As in the source, without ``self``."""
    doc: str
    twin: str = ""
    """The name of its async form, if the member is a blocking method that has one."""
    twin_call: str = ""
    """How that one is called."""

    @property
    def is_method(self) -> bool:
        """Whether it is called."""
        return "def " in self.signature


def members(cls: type) -> list[Member]:
    """Return the public members of a class and of the pulsed classes that it inherits from."""
    found: dict[str, Member] = {}
    for base in reversed(described_with(cls)):
        found |= {member.name: member for member in own_members(base)}
    paired = [with_twin(member, found) for member in found.values()]
    twins = {member.twin for member in paired}
    return [member for member in paired if member.name not in twins and says_something(member)]


def described_with(cls: type) -> list[type]:
    """Return a class and its bases in pulsed, without public ones, which have their own section."""
    public = [base for base in cls.__mro__[1:] if base.__name__ in pulsed.__all__]
    elsewhere = {each for base in public for each in base.__mro__}
    bases = [base for base in cls.__mro__ if base not in elsewhere]
    return [base for base in bases if base.__module__.startswith("pulsed")]


def with_twin(member: Member, found: dict[str, Member]) -> Member:
    """Return a member with its async form, also where both are written out."""
    twin = found.get(f"a{member.name}")
    if member.twin or not twin or not member.is_method:
        return member
    call = "async for … in " if "AsyncIterator" in twin.signature else "await "
    doc = max(member.doc, twin.doc, key=len)
    return replace(member, twin=twin.name, twin_call=f"{call}{twin.name}(…)", doc=doc)


def says_something(member: Member) -> bool:
    """Return whether a member has a docstring or, if it is an attribute, a type."""
    return bool(member.doc) or (not member.is_method and ":" in member.signature)


def own_members(cls: type) -> Iterator[Member]:
    """Yield the members that the body of a class defines."""
    tree = definition(cls)
    async_forms = {node.name: node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from of_function(node)
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call(args=[ast.Name(twin)])):
                if twin in async_forms:
                    yield of_twins(name, async_forms[twin])
            case ast.AnnAssign(target=ast.Name(name)) if not name.startswith("_"):
                shown = re.sub(r"field\(default_factory=(\w+)\)", r"\1()", ast.unparse(node))
                yield Member(name, shown, documented(after))


def of_function(node: Function) -> Iterator[Member]:
    """Yield a public method or property; overloads have no docstring and are left out."""
    doc = ast.get_docstring(node) or ""
    if node.name == "__init__":
        yield from of_instance(node)
    elif not node.name.startswith("_"):
        yield Member(node.name, signature(node), doc)


def of_instance(init: Function) -> Iterator[Member]:
    """Yield the attributes that a constructor documents."""
    for node, after in zip(init.body, [*init.body[1:], None], strict=True):
        match node:
            case (
                ast.Assign(targets=[ast.Attribute(ast.Name("self"), name)])
                | ast.AnnAssign(target=ast.Attribute(ast.Name("self"), name))
            ) if not name.startswith("_"):
                yield Member(name, name, documented(after))


def of_twins(name: str, node: ast.AsyncFunctionDef) -> Member:
    """Return the blocking form of an async method, under its own name."""
    blocking = f"def {signature(node).removeprefix('async def ')}"
    member = Member(name, blocking.replace(node.name, name, 1), ast.get_docstring(node) or "")
    return replace(member, twin=node.name, twin_call=f"await {node.name}(…)")


def documented(after: ast.stmt | None) -> str:
    """Return the text below an attribute."""
    match after:
        case ast.Expr(ast.Constant(str(text))):
            return text
    return ""


def signature(node: Function) -> str:
    """Return the first lines of a function, without what only the interpreter needs."""
    arguments = re.sub(r"^(self|cls)(: \w+)?(, /)?(, |$)", "", spaced(node.args))
    if "property" in "".join(map(ast.unparse, node.decorator_list)):
        return f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{start} {node.name}({arguments}){returns}"


def spaced(arguments: ast.arguments) -> str:
    """Return arguments as a formatter lays them out: with spaces around annotated defaults."""
    return re.sub(r"(: [^=]+?)=(?!=)", r"\1 = ", ast.unparse(arguments))


def constructor(cls: type) -> str:
    """Return how an object of a class is made, if its class says so itself."""
    for node in definition(cls).body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return signature(node).replace("def __init__", cls.__name__).removesuffix(" -> None")
    return ""


@functools.cache
def definition(cls: type) -> ast.ClassDef:
    """Return the syntax tree of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return tree
