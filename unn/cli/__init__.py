"""The commands of ``unn``, a module each."""
