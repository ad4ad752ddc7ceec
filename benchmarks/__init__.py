"""How fast pulsed is, measured on the machine it runs on."""
