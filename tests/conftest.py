"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# how long an example takes says more about the machine and what else runs on it than about the package
settings.register_profile("unn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unn")
