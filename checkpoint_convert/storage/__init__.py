"""Where bytes lie: folders on this machine and behind URLs, and the threads that read them."""
