"""How the members of a class are divided: one file a way."""
