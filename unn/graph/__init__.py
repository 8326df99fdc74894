"""Declarations of factor graphs: named arrays, factors and their structure, independent of inference."""
