"""Tools of operators that both the server's and the client's commands use: certificates and tokens. Not pure: they read
and write files, and draw secrets."""
