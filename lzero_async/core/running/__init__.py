"""Sessions that use a coordinator: the loop, a `for` loop of one's own, their collectors and their end."""
