"""Tools for operators, used by the commands of server and client: certificates and tokens. Not pure: they read and
write files, and draw secrets."""
