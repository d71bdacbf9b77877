"""The bytes of files: pickle, torch's zip, DCP and safetensors. Each reader stands beside its writer."""
