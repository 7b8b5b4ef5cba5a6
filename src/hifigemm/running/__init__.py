"""From a call to its result: request, plan, programs, blocks, report.

Nothing here knows of gradients or of other programs' products.
"""
