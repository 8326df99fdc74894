"""The engine ``recurrent``: the recurrent transformer of constraint problems."""
