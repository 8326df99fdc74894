"""The engine ``search``: sampled block descent on the counts of constraints, without training."""
