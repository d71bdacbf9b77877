"""Flat parameters of FSDP1 (LOCAL_STATE_DICT): from the elements that each rank has to whole tensors."""
