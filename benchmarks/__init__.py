"""How fast pulsed is, measured beside the bare drivers and its peers on the machine it runs on."""
