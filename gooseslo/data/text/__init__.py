"""Sources of text, their tokens prepared once in a cache folder, and samples cut from them."""
