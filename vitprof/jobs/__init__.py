"""Jobs: the queue and its worker threads, the child process, and the messages between them."""
