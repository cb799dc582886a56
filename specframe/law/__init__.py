"""What a probability is here: the sampling processors, the target's laws at the nodes of a draft,
and the noise streams."""
