"""Block coordinate descent on a declared graph."""
