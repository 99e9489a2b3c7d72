"""`lzero-async setup`: the tested versions of everything that an application needs, installed into the running environment."""
