"""How a model is split: mesh, collectives, random streams, tensor, pipeline and data parallelism."""
