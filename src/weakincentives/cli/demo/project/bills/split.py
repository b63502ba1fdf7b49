"""Who pays how much."""


def shares(total: int, people: int) -> list[int]:
    """Return what each pays, in cents; together it is `total`."""
    if people < 1:
        raise ValueError(f"A bill needs at least one person: {people}")
    return [total // people] * people
