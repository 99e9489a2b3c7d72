"""Agent, dynamics, buffers, and the roles that train them."""
