"""Where roles run (inline, thread, process, Ray) and how data travel between them."""
