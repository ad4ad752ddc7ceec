"""Where jobs are kept: the verbs, their SQL, and the engines that run them."""
