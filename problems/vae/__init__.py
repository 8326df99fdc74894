"""Images from latent groups."""
