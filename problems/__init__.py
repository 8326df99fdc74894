"""Problems: one module each, with declaration, data, metrics, baselines and defaults."""
