"""WHAT to run: typed specs, where their blocks' classes are found, and how spec files are read."""
