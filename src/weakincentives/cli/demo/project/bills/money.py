"""Money in whole cents, because floats lose some."""


def cents(text: str) -> int:
    """Return the amount that `text`, such as "10.00", stands for."""
    whole, _, part = text.partition(".")
    return int(whole) * 100 + int(f"{part:0<2}"[:2])


def shown(amount: int) -> str:
    """Return `amount` as people write it."""
    return f"{amount // 100}.{amount % 100:02d}"
