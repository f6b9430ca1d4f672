"""The way of bytes between a store and memory: settings of requests, and what goes up in parts."""
