"""The sample orders of mosaicml-streaming 0.13.0, id for id, so that stoker can resume its runs."""
