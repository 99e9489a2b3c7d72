"""One HTML page about one or several runs, made from the files that they left."""
