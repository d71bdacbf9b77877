"""From a manifest to a plan: what each entry becomes, and which problems there are."""
