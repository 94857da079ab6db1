"""Parts of a run in processes of Ray's, on this machine or another; needs the extra `search`."""
