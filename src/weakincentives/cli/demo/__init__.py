"""`wink demo`: an agent with a scripted model fixes a bug."""
