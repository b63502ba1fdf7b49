"""Money in whole cents, because floats are not exact."""


def cents(text: str) -> int:
    """Return an amount such as "10.00" in cents."""
    whole, _, part = text.partition(".")
    return int(whole) * 100 + int(f"{part:0<2}"[:2])


def format_cents(amount: int) -> str:
    """Return `amount` with two decimals."""
    return f"{amount // 100}.{amount % 100:02d}"
