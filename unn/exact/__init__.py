"""The engine ``exact``: sum-product and its relatives on graphs of tables, by contraction trees."""
