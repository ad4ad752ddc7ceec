"""How fast pulsed is, measured beside the raw drivers and its peers on the machine it runs on."""
