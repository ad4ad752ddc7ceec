"""What a server accepts: each item of a request is checked before a store sees it."""
