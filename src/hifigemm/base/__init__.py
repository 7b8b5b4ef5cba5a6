"""What everything else rests on: number formats, errors, settings, versions, tracing.

Nothing here knows of matrices, schemes or engines.
"""
