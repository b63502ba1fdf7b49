"""Short names for what people import most; nothing is defined here."""
