"""The server at which ranks of a benchmark meet without MPI, its clients, and what they send each other."""
