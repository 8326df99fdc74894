"""Models of tables: Bayesian networks and Markov networks from files, and random chains."""
