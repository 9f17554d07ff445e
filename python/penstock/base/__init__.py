"""Code that every other directory uses: checks of arguments, nests, ragged values, notes."""
