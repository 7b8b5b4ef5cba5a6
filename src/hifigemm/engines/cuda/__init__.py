"""A GPU: its engine, and the programs of each scheme."""
