"""Where ranks of a benchmark meet without MPI: a server, its clients, and what they send each other."""
