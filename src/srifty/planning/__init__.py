"""Planning: choose among everything that can be rented. It knows a function from clusters to estimates, no model."""
