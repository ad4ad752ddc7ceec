"""Serves the shop: ``python examples/fastapi_shop``, on http://127.0.0.1:8000 and SQLite."""

import os

import uvicorn

if __name__ == "__main__":
    uvicorn.run("shop:app", port=int(os.environ.get("SHOP_PORT", "8000")))
