"""Values as messages of the wire contract, and back."""
