"""Import shortcuts for the most used names; nothing is defined here."""
