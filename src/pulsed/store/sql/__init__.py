"""The statements that both engines share, and what differs between them."""
