"""Writers: samples to shards, shards to their store, the index last."""
