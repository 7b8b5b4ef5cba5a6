"""What measures and shows: the commands `demo`, `report` and `bench`, their pictures,
and the instruments in `measuring` that benchmarks and experiments use too.

Files appear whole (`atomic`) and carry the environment that they were measured in
(`environment`). The library itself uses nothing of it.
"""
